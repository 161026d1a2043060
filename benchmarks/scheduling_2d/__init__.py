"""How much of the stall that gradients of tables cause is hidden by delaying rows."""
