"""Software Carbon Intensity (ISO/IEC 21031): (E x I + M) / R from sums of entries. Pure."""
