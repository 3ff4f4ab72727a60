"""A call becomes a bundle: function, arguments, project, and the runner's code."""
