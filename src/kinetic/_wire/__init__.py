"""Words that client and runner share; standard library only."""

from kinetic._wire import standard_library

standard_library.prefer()  # every room imports this one, in clients, supervisors, workers and pods
