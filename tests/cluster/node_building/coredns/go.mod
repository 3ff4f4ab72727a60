// The DNS server of the real node, with the few plugins that the names of pods need.
module kinetic.test/coredns

go 1.25.0

require github.com/coredns/coredns v1.14.7
