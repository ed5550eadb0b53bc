//! What has its place beside the channels on screens of any width.

use std::time::Duration;

use super::{look, screen};
use crate::commands::watch::model::Model;

#[test]
fn the_course_of_time_has_its_place_beside_long_names() {
    let mut model = Model::new("till.db");
    for second in 0..20 {
        let mut look = look(second);
        for channel in &mut look.stats.channels {
            channel.channel = format!("{}-of-the-eastern-region", channel.channel);
        }
        model.seen(look, Duration::from_secs(second));
    }
    for width in [80, 100, 140] {
        let lines = screen(&model, width, 24);
        let text = lines.join("\n");
        let title = lines.iter().find(|it| it.contains("CHANNEL"));
        assert!(title.unwrap().contains("DEPTH"), "{text}");
        let sales = lines.iter().find(|it| it.starts_with("  sales-of-"));
        assert!(sales.unwrap().contains("▆▆"), "{text}");
        let whole = text.contains("returns-of-the-eastern-region");
        assert!(whole || width < 140, "cut beside empty columns:\n{text}");
    }
}

/// Too late is as bad as dead for whoever waited for it.
#[test]
fn what_has_expired_is_counted_on_every_screen() {
    let mut look = look(0);
    look.stats.channels[1].counts.expired = 1_234;
    let mut model = Model::new("till.db");
    model.seen(look, Duration::ZERO);
    for (width, height) in [(160, 40), (80, 24), (60, 24), (50, 20), (42, 20)] {
        let text = screen(&model, width, height).join("\n");
        let figure = |title: &str, row: &str| {
            let title_at = |line: &str| line.find(title).map(|at| at + title.len());
            let end = text.lines().find_map(title_at).unwrap();
            let line = text.lines().find(|it| it.starts_with("> returns"));
            assert!(line.unwrap()[..end].ends_with(row), "{width}:\n{text}");
        };
        figure("DEAD", " 1");
        figure("EXPIRED", " 1234");
    }
    let without = screen(&super::model(), 80, 24).join("\n");
    assert!(!without.contains("EXPIRED"), "{without}");
}

#[test]
fn what_keeps_everything_from_being_sent_is_said_once_and_whole() {
    let said = "another program has kept the file locked for longer than two seconds, and nothing can \
                be sent or enqueued meanwhile: see who";
    let mut look = look(0);
    look.findings = vec![said.into()];
    let mut model = Model::new("till.db");
    model.seen(look, Duration::ZERO);
    for (width, height) in [(50, 20), (80, 24), (200, 24)] {
        let lines = screen(&model, width, height);
        let text: Vec<_> = lines.iter().map(|it| it.trim_end()).collect();
        assert_eq!(text.join(" ").matches(said).count(), 1, "{text:#?}");
    }
}
