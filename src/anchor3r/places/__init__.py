"""Places recognised from any viewpoint: local features, visual words, an inverted index, poses by matches.

Arrays in, arrays out: knows neither maps nor pipelines. The vocabulary that ships with the package is the one
file it reads.
"""
