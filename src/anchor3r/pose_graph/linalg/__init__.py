"""Linear solvers of the pose graph: sparse factorisations, Laplacians, least absolute deviations."""
