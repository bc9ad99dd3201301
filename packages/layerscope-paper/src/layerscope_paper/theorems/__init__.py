"""The paper's inequalities as statements; the study `theory` searches for counterexamples."""
