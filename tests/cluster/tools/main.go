// One program with all of a control plane: etcd, the API server and the controllers. "cluster ROLE FLAGS".
package main

import (
	"log"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	role := os.Args[1]
	os.Args = append(os.Args[:1], os.Args[2:]...)
	switch role {
	case "etcd":
		etcd(os.Args[1], os.Args[2], os.Args[3])
	case "apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "controllers":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	default:
		log.Fatalf("no such role: %s", role)
	}
}

// etcd serves DIRECTORY at the two addresses until it gets a signal.
func etcd(directory, clients, peers string) {
	config := embed.NewConfig()
	config.Dir = directory
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true
	config.ListenClientUrls = []url.URL{address(clients)}
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = []url.URL{address(peers)}
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-ends:
		server.Close()
	case err := <-server.Err():
		log.Fatal(err)
	}
}

func address(text string) url.URL {
	parsed, err := url.Parse(text)
	if err != nil {
		log.Fatal(err)
	}
	return *parsed
}
