"""From a teacher to a student: collect answers, cut layers, train, quantise, publish, and say how good it is."""
