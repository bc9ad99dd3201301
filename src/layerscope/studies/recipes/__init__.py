"""Recipes: several studies in one file, with what they will cost said before they start."""
