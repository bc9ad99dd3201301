"""Tables in the terminal, figures, a notebook's view of a run, and a report in
one file."""
