"""Energy meters: one file each behind ``protocol.Meter``, and the hub that divides what they count."""
