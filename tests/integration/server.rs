//! A raw HTTP server on loopback that answers as the test tells it, badly if asked to.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

/// A request as it arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Which request of this server, from 1.
    pub(crate) number: usize,
    /// Which connection it came over, from 1.
    pub(crate) connection: usize,
    /// Which request of that connection, from 1.
    pub(crate) turn: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// These bytes; the connection stays open.
    Send(Vec<u8>),
    /// These bytes, then the end.
    SendAndClose(Vec<u8>),
    /// Nothing, until the server is dropped.
    Hang,
    /// These bytes, then one byte after the other of the second part, a millisecond apart, for ever.
    Drip(Vec<u8>, u8),
    /// These bytes, then kilobytes without end.
    Flood(Vec<u8>),
}

/// A whole response with its length.
pub(crate) fn respond(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut text = format!(
        "HTTP/1.1 {status} Said so\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    Answer::Send(format!("{text}\r\n{body}").into_bytes())
}

/// 200 and a short JSON body.
pub(crate) fn ok() -> Answer {
    respond(
        200,
        &[("Content-Type", "application/json")],
        r#"{"data":{"name":"INV-1"}}"#,
    )
}

type Script = Arc<dyn Fn(&Seen) -> Option<Answer> + Send + Sync>;

struct Shared {
    script: Script,
    /// Asked when the head is there and the body is not yet.
    early: Script,
    tls: Option<Arc<rustls::ServerConfig>>,
    seen: Mutex<Vec<Seen>>,
    /// Those that are open, by their number.
    streams: Mutex<HashMap<usize, TcpStream>>,
    accepted: AtomicUsize,
    requests: AtomicUsize,
    stopping: AtomicBool,
    arrived: Sender<()>,
    stop: Receiver<()>,
}

/// Serves until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    arrivals: Receiver<()>,
    stop: Option<Sender<()>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers every request by `script`.
    pub(crate) fn start(script: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::at(0, script)
    }

    /// As [`Server::start`], on this port: for a server that comes late.
    pub(crate) fn at(port: u16, script: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::run(
            port,
            Arc::new(move |seen| Some(script(seen))),
            Arc::new(|_| None),
            None,
        )
    }

    /// A port where nobody listens.
    pub(crate) fn free_port() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    }

    /// Answers by `early` before the body is read, where it answers at all.
    pub(crate) fn early(early: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> Self {
        Self::run(0, Arc::new(|_| Some(ok())), Arc::new(early), None)
    }

    /// Answers every request over TLS by 200.
    pub(crate) fn tls(config: rustls::ServerConfig) -> Self {
        Self::run(
            0,
            Arc::new(|_| Some(ok())),
            Arc::new(|_| None),
            Some(Arc::new(config)),
        )
    }

    fn run(
        port: u16,
        script: Script,
        early: Script,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = bounded(0);
        let (arrived, arrivals) = bounded(10_000);
        let shared = Arc::new(Shared {
            script,
            early,
            tls,
            seen: Mutex::default(),
            streams: Mutex::default(),
            accepted: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            arrived,
            stop: stopped,
        });
        let inner = shared.clone();
        let acceptor = std::thread::spawn(move || {
            let mut workers: Vec<JoinHandle<()>> = Vec::new();
            for stream in listener.incoming() {
                if inner.stopping.load(Ordering::SeqCst) {
                    break;
                }
                let stream = stream.unwrap();
                let connection = inner.accepted.fetch_add(1, Ordering::SeqCst) + 1;
                let clone = stream.try_clone().unwrap();
                inner.streams.lock().unwrap().insert(connection, clone);
                let (ended, open) = workers.into_iter().partition(JoinHandle::is_finished);
                workers = open;
                join(ended);
                let shared = inner.clone();
                workers.push(std::thread::spawn(move || {
                    // A client that goes away is no failure of the test.
                    let _ = match shared.tls.clone() {
                        Some(config) => {
                            let tls = rustls::ServerConnection::new(config).unwrap();
                            converse(rustls::StreamOwned::new(tls, stream), connection, &shared)
                        }
                        None => converse(stream, connection, &shared),
                    };
                    if let Some(stream) = shared.streams.lock().unwrap().remove(&connection) {
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                }));
            }
            join(workers);
        });
        Self {
            address,
            shared,
            arrivals,
            stop: Some(stop),
            acceptor: Some(acceptor),
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.shared.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}{path}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Connections accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many requests were received so far.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Requests received so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Waits until the next request has arrived.
    pub(crate) fn wait(&self) {
        self.arrivals
            .recv_timeout(Duration::from_secs(20))
            .expect("a request");
    }

    /// Closes every connection that is open now.
    pub(crate) fn hang_up(&self) {
        for stream in self.shared.streams.lock().unwrap().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.stop.take();
        self.hang_up();
        let _ = TcpStream::connect(self.address);
        let acceptor = self.acceptor.take().unwrap();
        if acceptor.join().is_err() && !std::thread::panicking() {
            panic!("the server's thread panicked");
        }
    }
}

/// A failure of a script is one of the server.
fn join(workers: Vec<JoinHandle<()>>) {
    for worker in workers {
        worker.join().unwrap();
    }
}

fn converse(stream: impl Read + Write, connection: usize, shared: &Shared) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    for turn in 1.. {
        let Some(mut seen) = head(&mut stream)? else {
            return Ok(());
        };
        seen.connection = connection;
        seen.turn = turn;
        let early = (shared.early)(&seen);
        if early.is_none() {
            if seen.header("expect").is_some() {
                stream
                    .get_mut()
                    .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                stream.get_mut().flush()?;
            }
            let length = seen
                .header("content-length")
                .map_or(0, |it| it.parse().unwrap());
            seen.body = vec![0; length];
            stream.read_exact(&mut seen.body)?;
        }
        seen.number = shared.requests.fetch_add(1, Ordering::SeqCst) + 1;
        shared.seen.lock().unwrap().push(seen.clone());
        let _ = shared.arrived.try_send(());
        let out = stream.get_mut();
        match early.or_else(|| (shared.script)(&seen)) {
            Some(Answer::Send(bytes)) => {
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(Answer::SendAndClose(bytes)) => {
                out.write_all(&bytes)?;
                return out.flush();
            }
            Some(Answer::Hang) | None => {
                let _ = shared.stop.recv();
                return Ok(());
            }
            Some(Answer::Drip(bytes, more)) => {
                out.write_all(&bytes)?;
                while shared
                    .stop
                    .recv_timeout(Duration::from_millis(1))
                    .is_err_and(|it| it.is_timeout())
                {
                    out.write_all(&[more])?;
                    out.flush()?;
                }
                return Ok(());
            }
            Some(Answer::Flood(bytes)) => {
                out.write_all(&bytes)?;
                loop {
                    out.write_all(&[b'x'; 1024])?;
                }
            }
        }
    }
    Ok(())
}

fn head(stream: &mut impl BufRead) -> std::io::Result<Option<Seen>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let mut seen = Seen {
        method: words.next().unwrap_or_default().into(),
        target: words.next().unwrap_or_default().into(),
        ..Seen::default()
    };
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                seen.headers
                    .push((name.to_ascii_lowercase(), value.trim().into()));
            }
            None => return Ok(Some(seen)),
        }
    }
}
