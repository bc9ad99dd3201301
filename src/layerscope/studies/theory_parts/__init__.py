"""How the study of the theorems tries, tells and draws them."""
