"""Results -> terminal table, figures, HTML page, paper."""
