"""The parameters of this node's runs, handed to other processes on this machine as rounds commit them."""
