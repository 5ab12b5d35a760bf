use proptest::prelude::*;

use super::*;

fn pages() -> impl Strategy<Value = PageKind> {
    (0..PageKind::ALL.len()).prop_map(|index| PageKind::ALL[index])
}

fn sharing() -> impl Strategy<Value = Sharing> {
    (0..Sharing::ALL.len()).prop_map(|index| Sharing::ALL[index])
}

fn name() -> impl Strategy<Value = SnapshotName> {
    "[a-zA-Z0-9._-]{1,32}".prop_map(|text| SnapshotName::new(&text).expect("a name"))
}

fn ticket() -> impl Strategy<Value = Ticket> {
    any::<[u8; 16]>().prop_map(Ticket::from_bytes)
}

fn node() -> impl Strategy<Value = Option<u32>> {
    proptest::option::of(0..u32::MAX)
}

fn reservation() -> impl Strategy<Value = Reservation> {
    let asked = (1u64.., proptest::option::of(pages()), node(), 1..=MAX_WAIT_MS);
    (name(), ticket(), asked).prop_map(|(name, ticket, (bytes, pages, node, limit_ms))| {
        Reservation { name, ticket, bytes, pages, node, limit_ms }
    })
}

fn reservation_row() -> impl Strategy<Value = ReservationRow> {
    (name(), any::<[u64; 2]>(), pages(), node(), 0..Stage::ALL.len()).prop_map(
        |(name, [bytes, left_ms], pages, node, stage)| ReservationRow {
            name,
            bytes,
            pages,
            node,
            stage: Stage::ALL[stage],
            left_ms,
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let lease = (1u64.., proptest::option::of(pages()), any::<bool>(), 0..=MAX_WAIT_MS);
    prop_oneof![
        lease.prop_map(|(bytes, pages, by_lessee, wait_ms)| {
            let charge = if by_lessee { Charge::Lessee } else { Charge::Daemon };
            Request::Lease(LeaseRequest { bytes, pages, charge, wait_ms })
        }),
        Just(Request::End),
        Just(Request::Resume),
        Just(Request::Stat),
        Just(Request::Settings),
        any::<u32>().prop_map(Request::Classes),
        any::<u32>().prop_map(Request::Leases),
        any::<u32>().prop_map(Request::Snapshots),
        (name(), 0..=MAX_WAIT_MS).prop_map(|(name, wait_ms)| Request::LeaseSnapshot(name, wait_ms)),
        reservation().prop_map(Request::Reserve),
        name().prop_map(Request::Release),
        (ticket(), 0..=MAX_WAIT_MS).prop_map(|(it, wait_ms)| Request::LeaseTicket(it, wait_ms)),
        ticket().prop_map(Request::ResumeTicket),
        any::<u32>().prop_map(Request::Reservations),
        (0..PaceSetting::ALL.len(), 1u64..1000).prop_map(|(index, raw)| {
            let setting = PaceSetting::ALL[index];
            Request::Set(setting, if setting.is_valid(raw) { raw } else { 1 })
        }),
    ]
}

fn class_row() -> impl Strategy<Value = ClassRow> {
    (any::<[u64; 3]>(), any::<[u32; 5]>(), pages(), proptest::option::of(0..u32::MAX)).prop_map(
        |(longs, shorts, pages, node)| ClassRow {
            bytes: longs[0],
            pages,
            node,
            wanted: shorts[0],
            ready: shorts[1],
            populating: shorts[2],
            populating_bytes: longs[1],
            huge_bytes: longs[2],
            leased: shorts[3],
            waiting: shorts[4],
        },
    )
}

fn snapshot_row() -> impl Strategy<Value = SnapshotRow> {
    (name(), any::<u64>(), 0..FileState::ALL.len(), sharing(), class_row()).prop_map(
        |(name, file_bytes, state, sharing, class)| SnapshotRow {
            name,
            file_bytes,
            file: FileState::ALL[state],
            sharing,
            class,
        },
    )
}

fn lease_row() -> impl Strategy<Value = LeaseRow> {
    (any::<[u64; 3]>(), any::<[u32; 2]>(), pages()).prop_map(|(longs, shorts, pages)| LeaseRow {
        id: longs[0],
        bytes: longs[1],
        pages,
        uid: shorts[0],
        pid: shorts[1],
        age_ms: longs[2],
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    use proptest::collection::vec;
    let refusal = (0..Reason::ALL.len(), any::<u64>(), vec(any::<u64>(), 0..MAX_SIZES));
    let grant = (any::<[u64; 2]>(), pages(), any::<bool>(), sharing());
    prop_oneof![
        refusal.prop_map(|(index, limit_bytes, sizes)| {
            Reply::Refused(Refusal { reason: Reason::ALL[index], limit_bytes, sizes })
        }),
        grant.prop_map(|([id, bytes], pages, by_lessee, sharing)| {
            let charge = if by_lessee { Charge::Lessee } else { Charge::Daemon };
            Reply::Granted(Grant { id, bytes, pages, charge, sharing })
        }),
        Just(Reply::Done),
        (any::<u32>(), vec(class_row(), 0..MAX_ROWS)).prop_map(|(n, r)| Reply::Classes(n, r)),
        (any::<u32>(), vec(lease_row(), 0..MAX_ROWS)).prop_map(|(n, r)| Reply::Leases(n, r)),
        (any::<u32>(), vec(snapshot_row(), 0..=MAX_SNAPSHOT_ROWS))
            .prop_map(|(n, r)| Reply::Snapshots(n, r)),
        (any::<u32>(), vec(reservation_row(), 0..=MAX_ROWS))
            .prop_map(|(n, r)| Reply::Reservations(n, r)),
        vec(any::<u64>(), 0..MAX_COUNTERS).prop_map(Reply::Stat),
        vec(any::<u64>(), 0..8).prop_map(Reply::Settings),
    ]
}

proptest! {
    #[test]
    fn requests_are_read_back(request in request()) {
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn replies_are_read_back(reply in reply()) {
        let bytes = reply.encode();
        prop_assert!(bytes.len() <= MAX_BYTES);
        prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
    }

    /// Any bytes are read or refused; a message that is read is the one that was sent.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::decode(&bytes) {
            prop_assert_eq!(request.encode(), bytes);
        } else {
            let _ = Reply::decode(&bytes);
        }
    }

    /// A byte too few, too many or another one.
    #[test]
    fn damaged_messages_are_read_or_refused(
        request in request(),
        reply in reply(),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
    ) {
        for bytes in [request.encode(), reply.encode()] {
            for length in 0..bytes.len() {
                prop_assert!(Request::decode(&bytes[..length]).is_err());
                prop_assert!(Reply::decode(&bytes[..length]).is_err());
            }
            let longer = [&bytes[..], &[byte]].concat();
            prop_assert!(Request::decode(&longer).is_err());
            prop_assert!(Reply::decode(&longer).is_err());
            let mut other = bytes.clone();
            other[at.index(bytes.len())] = byte;
            if let Ok(request) = Request::decode(&other) {
                prop_assert_eq!(request.encode(), other);
            } else if let Ok(reply) = Reply::decode(&other) {
                prop_assert_eq!(reply.encode(), other);
            }
        }
    }
}

#[test]
fn the_longest_messages_fit() {
    let row = ClassRow {
        bytes: 1,
        pages: PageKind::Thp,
        node: None,
        wanted: 1,
        ready: 1,
        populating: 0,
        populating_bytes: 0,
        huge_bytes: 0,
        leased: 0,
        waiting: 0,
    };
    let rows = Reply::Classes(1000, vec![row; 1000]).encode();
    assert!(rows.len() <= MAX_BYTES);
    assert!(Reply::decode(&rows).is_ok());
    assert!(Reply::Stat(vec![0; 1000]).encode().len() <= MAX_BYTES);
}

#[test]
fn another_version_is_told() {
    let mut bytes = Request::Stat.encode();
    bytes[4] = 9;
    assert_eq!(Request::decode(&bytes), Err(Malformed::Version(9)));
}
