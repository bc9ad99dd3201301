"""The paper's inequalities as statements that a computer can try to break: one file per theorem, pure mathematics in float64."""
