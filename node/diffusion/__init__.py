"""Pictures from noise: flow matching, by one network, or by experts that were trained apart and a router."""
