"""The process that answers for experts: sharing (pure) < server, one expert < process, all of them."""
