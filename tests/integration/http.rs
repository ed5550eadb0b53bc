//! The HTTP dispatcher against a server that behaves in every way servers do.

mod answers;
mod connections;
mod credentials;
mod echo;
mod requests;
mod settings;
mod tls;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlite_outbox::{
    Credential, CredentialRequest, Delivery, Dispatcher, Failure, HttpDispatcher, Otherwise,
    Outcome, Receipt, Reply, ReplyRule, Route, Secret,
};

use crate::server::{Answer, Server, ok, respond};

fn over(route: Route) -> HttpDispatcher {
    HttpDispatcher::builder()
        .channel("sales", route)
        .build()
        .unwrap()
}

fn to(server: &Server) -> HttpDispatcher {
    over(Route::post(server.url("/")))
}

fn sale() -> Delivery {
    Delivery::new("sales", r#"{"total":1250}"#)
}

fn send(dispatcher: &HttpDispatcher, delivery: &Delivery) -> Outcome {
    dispatcher.dispatch(delivery).unwrap()
}

#[track_caller]
fn delivered(outcome: Outcome) -> Receipt {
    match outcome {
        Outcome::Delivered(receipt) => receipt,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn rejected(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Rejected(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn retry(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Retry(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn blocked(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Blocked(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn unreachable(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Unreachable(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// The sentence of a route that cannot be built.
#[track_caller]
fn refused(route: Route) -> String {
    let built = HttpDispatcher::builder().channel("sales", route).build();
    let error = built.expect_err("a route that cannot be built");
    assert!(
        matches!(error, sqlite_outbox::Error::InvalidSetting(_)),
        "{error:?}"
    );
    error.to_string()
}
