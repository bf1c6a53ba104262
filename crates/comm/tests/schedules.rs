//! The in-process communicator under many schedules of its threads: `cargo test -p convoy-comm --features shuttle`.
//! A schedule that hangs or fails is printed and can be replayed.

use convoy_comm::{AllReduce, Communicator, Error, Leave, Team, all_gather, all_reduce, barrier, threads};
use shuttle::{check_random, thread};
use std::time::Duration;

/// Ranks as threads of the checker.
fn on_all(ranks: usize, work: fn(&Communicator)) {
    let spawn = |c: Communicator| thread::spawn(move || work(&c));
    let ranks: Vec<_> = threads(ranks).into_iter().map(spawn).collect();
    ranks.into_iter().for_each(|rank| rank.join().expect("a rank"));
}

#[test]
fn messages_keep_their_order_and_their_tags() {
    let exchange = |c: &Communicator| {
        let other = 1 - c.rank();
        for round in 0..3 {
            c.send(other, 1, &[round]);
            c.send(other, 2, &[round + 10]);
        }
        for (tag, first) in [(2, 10), (1, 0)] {
            for round in 0..3 {
                let mut byte = [0];
                c.receive(other, tag, &mut byte, "a byte").unwrap();
                assert_eq!(byte, [first + round]);
            }
        }
    };
    check_random(move || on_all(2, exchange), 2000);
}

#[test]
fn what_was_sent_before_an_end_arrives() {
    let end = |c: &Communicator| {
        if c.rank() == 0 {
            c.send(1, 1, &[7]);
            return c.end("done");
        }
        let mut byte = [0];
        assert_eq!(c.receive(0, 1, &mut byte, "a byte"), Ok(()));
        assert!(matches!(c.receive(0, 1, &mut byte, "another"), Err(Error::Ended { rank: 0, .. })));
    };
    check_random(move || on_all(2, end), 5000);
}

#[test]
fn collectives_end_with_the_same_on_all() {
    let together = |c: &Communicator| {
        let team = Team::all(c);
        barrier(c, &team).unwrap();
        let all = all_gather(c, &team, &vec![c.rank() as u8; c.rank()]).unwrap();
        assert_eq!(all, [vec![], vec![1], vec![2, 2]]);
        for how in [AllReduce::Tree, AllReduce::Ring] {
            let mut numbers = [1.0f32, c.rank() as f32];
            all_reduce(c, &team, &mut numbers, how).unwrap();
            assert_eq!(numbers, [3.0, 3.0]);
        }
    };
    check_random(move || on_all(3, together), 300);
}

#[test]
fn all_leave_with_the_code_of_the_first_that_ended() {
    let leave = |c: &Communicator| {
        if c.rank() < 2 {
            c.end(&format!("rank {} failed", c.rank()));
        } else {
            c.receive(0, 1, &mut [0], "a byte that never comes").unwrap_err();
            c.end("another rank ended");
        }
        let leave = Leave { code: 10 + c.rank() as u8, patience: Duration::from_secs(3600) };
        let code = leave.together(c, |silent| assert!(silent.is_empty()));
        // Ranks 0 and 1 may each be the first; the others follow whoever was.
        assert!(code == 10 || code == 11, "{code}");
    };
    check_random(move || on_all(3, leave), 1000);
}
