"""Students: distillation from tasks to a published model, and the student as drafter."""
