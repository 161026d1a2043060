"""How fast is a whole training step, and how soon has a model learned, in each way of summing gradients."""
