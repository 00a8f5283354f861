"""Model engines: one file each behind ``protocol.Engine``."""
