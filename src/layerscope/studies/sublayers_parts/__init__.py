"""The steps inside a block, and what each does to entropy and rank."""
