"""The month's report as a document: what stands in it, and how it is written as JSON and CSV. Pure."""

from carbonq.report.document import Report
from carbonq.report.written import as_json, csv_rows, sections

__all__ = ["Report", "as_json", "csv_rows", "sections"]
