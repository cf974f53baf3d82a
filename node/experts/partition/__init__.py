"""Which part of the data is whose: samples in groups, by what they are like."""
