//! The calls, by the codec of `prost`: those that the kubelet makes here, and those that are made there. It is what
//! tonic's generator would write, by hand.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::{http, BoxFuture, Context, Poll, Service};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::api::{self, path};

/// A plugin's answers.
pub trait DevicePlugin: Send + Sync + 'static {
    /// The stream of lists of devices.
    type Lists: Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send + 'static;

    /// `GetDevicePluginOptions`.
    fn options(&self) -> api::DevicePluginOptions;

    /// `ListAndWatch`.
    fn list_and_watch(&self) -> Self::Lists;

    /// `GetPreferredAllocation`.
    fn preferred(
        &self,
        asked: api::PreferredAllocationRequest,
    ) -> Result<api::PreferredAllocationResponse, Status>;

    /// `Allocate`.
    fn allocate(
        &self,
        asked: api::AllocateRequest,
    ) -> impl Future<Output = Result<api::AllocateResponse, Status>> + Send;
}

/// A plugin as a service of tonic's.
#[derive(Debug)]
pub struct DevicePluginServer<P>(Arc<P>);

impl<P> DevicePluginServer<P> {
    /// Serves these answers.
    pub fn new(plugin: Arc<P>) -> DevicePluginServer<P> {
        DevicePluginServer(plugin)
    }
}

impl<P> Clone for DevicePluginServer<P> {
    fn clone(&self) -> DevicePluginServer<P> {
        DevicePluginServer(Arc::clone(&self.0))
    }
}

impl<P> NamedService for DevicePluginServer<P> {
    const NAME: &'static str = "v1beta1.DevicePlugin";
}

impl<P: DevicePlugin> Service<http::Request<Body>> for DevicePluginServer<P> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let plugin = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match request.uri().path() {
                path::OPTIONS => {
                    Grpc::new(ProstCodec::default()).unary(Options(plugin), request).await
                }
                path::LIST_AND_WATCH => {
                    Grpc::new(ProstCodec::default()).server_streaming(Lists(plugin), request).await
                }
                path::PREFERRED => {
                    Grpc::new(ProstCodec::default()).unary(Preferred(plugin), request).await
                }
                path::ALLOCATE => {
                    Grpc::new(ProstCodec::default()).unary(Allocate(plugin), request).await
                }
                path::PRE_START => Grpc::new(ProstCodec::default()).unary(PreStart, request).await,
                _ => Status::new(Code::Unimplemented, "no such call").into_http(),
            })
        })
    }
}

struct Options<P>(Arc<P>);

impl<P: DevicePlugin> UnaryService<api::Empty> for Options<P> {
    type Response = api::DevicePluginOptions;
    type Future = BoxFuture<Response<Self::Response>, Status>;

    fn call(&mut self, _: Request<api::Empty>) -> Self::Future {
        let options = self.0.options();
        Box::pin(async move { Ok(Response::new(options)) })
    }
}

struct Lists<P>(Arc<P>);

impl<P: DevicePlugin> ServerStreamingService<api::Empty> for Lists<P> {
    type Response = api::ListAndWatchResponse;
    type ResponseStream = P::Lists;
    type Future = BoxFuture<Response<P::Lists>, Status>;

    fn call(&mut self, _: Request<api::Empty>) -> Self::Future {
        let lists = self.0.list_and_watch();
        Box::pin(async move { Ok(Response::new(lists)) })
    }
}

struct Preferred<P>(Arc<P>);

impl<P: DevicePlugin> UnaryService<api::PreferredAllocationRequest> for Preferred<P> {
    type Response = api::PreferredAllocationResponse;
    type Future = BoxFuture<Response<Self::Response>, Status>;

    fn call(&mut self, request: Request<api::PreferredAllocationRequest>) -> Self::Future {
        let answer = self.0.preferred(request.into_inner());
        Box::pin(async move { answer.map(Response::new) })
    }
}

struct Allocate<P>(Arc<P>);

impl<P: DevicePlugin> UnaryService<api::AllocateRequest> for Allocate<P> {
    type Response = api::AllocateResponse;
    type Future = BoxFuture<Response<Self::Response>, Status>;

    fn call(&mut self, request: Request<api::AllocateRequest>) -> Self::Future {
        let plugin = Arc::clone(&self.0);
        Box::pin(async move { plugin.allocate(request.into_inner()).await.map(Response::new) })
    }
}

/// The options say that nothing is to be done before a container starts. It is no error all the same.
struct PreStart;

impl UnaryService<api::PreStartContainerRequest> for PreStart {
    type Response = api::Empty;
    type Future = BoxFuture<Response<api::Empty>, Status>;

    fn call(&mut self, _: Request<api::PreStartContainerRequest>) -> Self::Future {
        Box::pin(async { Ok(Response::new(api::Empty {})) })
    }
}

/// Tells the kubelet that listens at a socket of a plugin.
///
/// # Errors
/// Nobody listens there, the kubelet says no, or it says nothing in time.
pub async fn register(
    socket: &Path,
    request: api::RegisterRequest,
    patience: Duration,
) -> Result<(), Status> {
    let _: api::Empty = call(socket, path::REGISTER, request, patience).await?;
    Ok(())
}

/// Asks the kubelet for its pods and their devices.
///
/// # Errors
/// As [`register`].
pub async fn pods(
    socket: &Path,
    patience: Duration,
) -> Result<api::ListPodResourcesResponse, Status> {
    call(socket, path::LIST_PODS, api::Empty {}, patience).await
}

async fn call<Q, A>(
    socket: &Path,
    path: &'static str,
    request: Q,
    patience: Duration,
) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let asked = async {
        let channel = connect(socket).await?;
        let mut grpc = tonic::client::Grpc::new(channel);
        let unready = |error| Status::unavailable(format!("{error}"));
        grpc.ready().await.map_err(unready)?;
        let path = http::uri::PathAndQuery::from_static(path);
        let codec = ProstCodec::<Q, A>::default();
        grpc.unary(Request::new(request), path, codec).await.map(Response::into_inner)
    };
    let late = |_| Status::deadline_exceeded("no answer in time");
    tokio::time::timeout(patience, asked).await.map_err(late)?
}

async fn connect(socket: &Path) -> Result<Channel, Status> {
    let unusable = |error| Status::unavailable(format!("{}: {error}", socket.display()));
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    endpoint.map_err(unusable)?.connect().await.map_err(unusable)
}
