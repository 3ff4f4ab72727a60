// The JobSet controller, built as a program of its own; its module also holds the definition of the resource.
module kinetic.test/jobset

go 1.24.0

require sigs.k8s.io/jobset v0.10.1
