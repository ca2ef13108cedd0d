"""Makes a student from a teacher: collects answers, cuts layers, trains, quantises, publishes, and reports quality."""
