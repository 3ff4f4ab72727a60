// etcd, in a module of its own: it and Kubernetes need different versions of the same libraries.
module kinetic.test/etcd

go 1.25.0

require go.etcd.io/etcd/server/v3 v3.6.12
