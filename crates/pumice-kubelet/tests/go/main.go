// A kubelet's side, made of the published API in Go: no line of it is shared with the plugin. It waits until a plugin
// registers, talks with it as a kubelet does, and prints the variables that a container of two devices would get.
//
//	kubelet FOLDER
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type registry struct {
	came chan *api.RegisterRequest
}

func (r registry) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	r.came <- request
	return &api.Empty{}, nil
}

func must(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func expect(what string, is bool) {
	if !is {
		fmt.Fprintf(os.Stderr, "not so: %s\n", what)
		os.Exit(1)
	}
}

func main() {
	folder := os.Args[1]
	listener, err := net.Listen("unix", filepath.Join(folder, filepath.Base(api.KubeletSocket)))
	must("listen", err)
	came := make(chan *api.RegisterRequest, 16)
	server := grpc.NewServer()
	api.RegisterRegistrationServer(server, registry{came})
	go server.Serve(listener)

	limit, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var request *api.RegisterRequest
	select {
	case request = <-came:
	case <-limit.Done():
		must("a plugin registers", limit.Err())
	}
	expect("the version", request.Version == api.Version)
	expect("the options", request.Options != nil && request.Options.GetPreferredAllocationAvailable)

	// As the kubelet connects.
	connection, err := grpc.NewClient("passthrough:///"+filepath.Join(folder, request.Endpoint),
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	must("connect", err)
	plugin := api.NewDevicePluginClient(connection)
	options, err := plugin.GetDevicePluginOptions(limit, &api.Empty{})
	must("GetDevicePluginOptions", err)
	expect("the same options", options.String() == request.Options.String())

	lists, err := plugin.ListAndWatch(limit, &api.Empty{})
	must("ListAndWatch", err)
	list, err := lists.Recv()
	must("a list", err)
	var ids []string
	for _, device := range list.Devices {
		expect("healthy", device.Health == api.Healthy)
		expect("no node", device.Topology == nil)
		ids = append(ids, device.ID)
	}
	expect("devices", len(ids) >= 2)

	preferred, err := plugin.GetPreferredAllocation(limit, &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: ids, MustIncludeDeviceIDs: ids[1:2], AllocationSize: 2},
		},
	})
	must("GetPreferredAllocation", err)
	chosen := preferred.ContainerResponses[0].DeviceIDs
	expect("two, and the one that must be", len(chosen) == 2 && chosen[0] == ids[1])

	given, err := plugin.Allocate(limit, &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIDs: chosen}},
	})
	must("Allocate", err)
	container := given.ContainerResponses[0]
	expect("a mount", len(container.Mounts) == 1 && container.Mounts[0].ReadOnly)
	_, err = plugin.PreStartContainer(limit, &api.PreStartContainerRequest{DevicesIDs: chosen})
	must("PreStartContainer", err)

	var lines []string
	for name, value := range container.Envs {
		lines = append(lines, name+"="+value)
	}
	sort.Strings(lines)
	fmt.Println(request.ResourceName)
	for _, line := range lines {
		fmt.Println(line)
	}
}
