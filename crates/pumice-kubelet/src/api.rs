//! The messages of the kubelet's API for device plugins (`v1beta1`), and those of its list of pods (`v1`) that are
//! needed here. Numbers and types of fields are those of `k8s.io/kubelet/pkg/apis`. A field of the second API that is
//! not here is skipped when it comes.

use std::collections::HashMap;

/// The version of the API for device plugins.
pub const VERSION: &str = "v1beta1";
/// A device that can be given out.
pub const HEALTHY: &str = "Healthy";
/// A device that can't.
pub const UNHEALTHY: &str = "Unhealthy";
/// The kubelet's socket in its folder for device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// The paths of the calls.
pub mod path {
    /// Of the kubelet: a plugin is there.
    pub const REGISTER: &str = "/v1beta1.Registration/Register";
    /// Of a plugin: the options.
    pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    /// Of a plugin: the devices, again after each change.
    pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    /// Of a plugin: the devices that it would rather give out.
    pub const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    /// Of a plugin: devices are given out.
    pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    /// Of a plugin: a container is about to start.
    pub const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";
    /// Of the kubelet: the pods and their devices.
    pub const LIST_PODS: &str = "/v1.PodResourcesLister/List";
}

/// Nothing.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

/// The calls that a plugin has.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DevicePluginOptions {
    /// Whether `PreStartContainer` is to be called.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Whether `GetPreferredAllocation` may be called.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// A plugin is there.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RegisterRequest {
    /// Of the API.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket, in the kubelet's folder.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource that its devices are of.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// Its options.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// The devices there are.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListAndWatchResponse {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Device {
    /// Its name.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// Its place.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

/// The place of a device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TopologyInfo {
    /// Memory nodes.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A memory node.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NumaNode {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// A container is about to start.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreStartContainerRequest {
    /// Its devices.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

/// Which devices should be given out?
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationRequest {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// The same for a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerPreferredAllocationRequest {
    /// Those that are free.
    #[prost(string, repeated, tag = "1")]
    pub available_device_ids: Vec<String>,
    /// Those that must be among them.
    #[prost(string, repeated, tag = "2")]
    pub must_include_device_ids: Vec<String>,
    /// How many.
    #[prost(int32, tag = "3")]
    pub allocation_size: i32,
}

/// The devices that should be given out.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PreferredAllocationResponse {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// The same for a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerPreferredAllocationResponse {
    /// The devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// Devices are given out.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateRequest {
    /// To each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The same for a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateRequest {
    /// The devices.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

/// The means by which containers have the devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AllocateResponse {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// The same for a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Variables.
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    /// Files and folders.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Special files.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    /// For the container's runtime.
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
    /// Devices that the container's runtime knows.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A file or folder of the machine's in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Mount {
    /// Its path there.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Its path here.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Whether it can't be written to.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A special file of the machine's in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeviceSpec {
    /// Its path there.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Its path here.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// For reading (r), writing (w), making (m).
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// A device that the container's runtime knows.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CdiDevice {
    /// Its full name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// The pods of a machine.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListPodResourcesResponse {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// A pod.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PodResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its name's space.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its devices.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// The devices of a resource that a container has.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContainerDevices {
    /// The resource.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The devices.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// By hand from the published definition: tag and type of each field, in the order of their numbers.
    #[test]
    fn bytes_are_those_of_the_published_api() {
        let options = DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        };
        let request = RegisterRequest {
            version: "v".into(),
            endpoint: "e".into(),
            resource_name: "r".into(),
            options: Some(options),
        };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x04\x08\x01\x10\x01");
        let topology = Some(TopologyInfo { nodes: vec![NumaNode { id: 3 }] });
        let device = Device { id: "d".into(), health: "h".into(), topology };
        let list = ListAndWatchResponse { devices: vec![device] };
        assert_eq!(list.encode_to_vec(), b"\x0a\x0c\x0a\x01d\x12\x01h\x1a\x04\x0a\x02\x08\x03");
        let mount = Mount { container_path: "c".into(), host_path: "h".into(), read_only: true };
        let response = ContainerAllocateResponse {
            envs: [("k".to_owned(), "v".to_owned())].into(),
            mounts: vec![mount],
            ..ContainerAllocateResponse::default()
        };
        let bytes = b"\x0a\x06\x0a\x01k\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01";
        assert_eq!(response.encode_to_vec(), bytes);
        let request = ContainerPreferredAllocationRequest {
            available_device_ids: vec!["a".into()],
            must_include_device_ids: vec!["m".into()],
            allocation_size: 2,
        };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01a\x12\x01m\x18\x02");
    }
}
