"""Grid sources: one file each behind ``protocol.GridSource``."""
