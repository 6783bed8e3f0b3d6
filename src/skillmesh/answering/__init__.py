"""From descriptors to an answer: the mapper names the task, the task's head the class."""
