"""The paper's inequalities as statements that a computer can try to break; the study `theory`
does."""
