"""DAGs to begin with: copy one into your folder of DAGs, or import it there."""
