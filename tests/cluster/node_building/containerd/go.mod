// The container runtime of the real node. 2.x: a kubelet of 1.36 asks for RuntimeConfig, which Debian's 1.6 does not know.
module kinetic.test/containerd

go 1.25.0

require github.com/containerd/containerd/v2 v2.2.9
