// The registry of the tests: distribution, with the parts that they need.
module kinetic.test/registry

go 1.25.0

require github.com/distribution/distribution/v3 v3.1.2
