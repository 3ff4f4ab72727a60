// The controller of LeaderWorkerSets, built as a program of its own; its definitions are in the test cluster anyway.
module kinetic.test/lws

go 1.24.0

require sigs.k8s.io/lws v0.7.0
