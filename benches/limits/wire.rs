//! The receiver, in a process of its own, and raw ureq against it: the limit of the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::child;
use crate::figure::rate;
use crate::file::payload;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A receiver that takes everything, after a while.
#[derive(Debug)]
pub struct Sink {
    process: Child,
    pub url: String,
}

impl Sink {
    pub fn start(delay_ms: u64) -> Result<Self> {
        let mut process = child::command(&["sink", &delay_ms.to_string()])?.spawn()?;
        let mut line = String::new();
        let output = process.stdout.take().context("no output of the sink")?;
        BufReader::new(output).read_line(&mut line)?;
        let url = format!("http://127.0.0.1:{}/sales", line.trim());
        Ok(Self { process, url })
    }
}

impl Drop for Sink {
    /// It ends when its input does.
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The child: says its port and serves until its input ends.
pub fn serve(delay: Duration) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_all(stream, delay));
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// As bare as can be: reads to the end of each request and answers always the same.
fn answer_all(mut stream: TcpStream, delay: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 * 1024];
    let mut filled = 0;
    loop {
        let head = loop {
            let end = buffer[..filled].windows(4).position(|it| it == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            filled += match stream.read(&mut buffer[filled..])? {
                0 => return Ok(()),
                more => more,
            };
        };
        let text = String::from_utf8_lossy(&buffer[..head]).to_ascii_lowercase();
        let length = text.split("content-length:").nth(1);
        let length = length.and_then(|it| it.lines().next()?.trim().parse().ok());
        let length: usize = length.unwrap_or(0);
        if text.contains("expect: 100-continue") {
            stream.write_all(GO_ON)?;
        }
        let mut missing = (head + length).saturating_sub(filled);
        if missing == 0 {
            buffer.copy_within(head + length..filled, 0);
            filled -= head + length;
        } else {
            filled = 0;
        }
        while missing > 0 {
            missing = missing.saturating_sub(match stream.read(&mut buffer)? {
                0 => return Ok(()),
                more => more,
            });
        }
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        stream.write_all(ANSWER)?;
    }
}

/// The same requests by ureq and nothing else, from this many threads. Requests a second.
pub fn raw(sink: &Sink, requests: usize, threads: usize) -> Result<f64> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .proxy(None)
        .http_status_as_error(false)
        .max_idle_connections(threads)
        .max_idle_connections_per_host(threads)
        .build()
        .into();
    let body = payload();
    let next = AtomicUsize::new(0);
    let post = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= requests {
                return Ok(());
            }
            let mut response = agent
                .post(&sink.url)
                .header("content-type", "application/json")
                .header("idempotency-key", format!("{number:032x}"))
                .send(&body)?;
            ensure!(response.status() == 200, "the sink answered otherwise");
            response.body_mut().read_to_vec()?;
        }
    };
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(post)).collect();
        threads
            .into_iter()
            .try_for_each(|it| it.join().expect("a thread panicked"))
    })?;
    Ok(rate(requests, begun.elapsed()))
}
