"""A small transformer trained end to end, with attention, layer norm and cross-entropy in Triton."""
