"""How the study of α makes its spectra, tells and draws them."""
