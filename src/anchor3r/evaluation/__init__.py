"""How good a map is: metrics, benchmarks in their official layouts, tables next to the paper, figures."""
