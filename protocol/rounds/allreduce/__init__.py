"""One mean of one group: butterfly all-reduce (allreduce.py is the machine). Pure."""
