// The controller of Kueue, built as a program of its own; its definitions are in the test cluster anyway.
module kinetic.test/kueue

go 1.24.0

require sigs.k8s.io/kueue v0.14.0
