//! Real programs: under the shim they must print what they print without it.

use std::fs;

use crate::shim::{compare_success, have, scratch, Mode};

/// The shim as it is by default, and with as much as can be coming from the heap.
const MODES: [Mode; 2] = [Mode::Verify, Mode::Small];

/// Lines in an order that is none, always the same.
fn lines(count: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut line = || format!("{:x} {}\n", random.u64(..1 << 44), random.u64(..1 << 14));
    (0..count).map(|_| line()).collect::<String>().into_bytes()
}

#[test]
fn python() {
    if !have("python3") {
        return;
    }
    let program = "
import hashlib, subprocess, threading
blocks = [bytearray(100_000 * i) for i in range(1, 30)]
assert all(not any(b[::4096]) for b in blocks)
text = ' '.join(str(i * i) for i in range(300_000))
print(hashlib.sha256(text.encode()).hexdigest(), len(text))
numbers = list(range(1_000_000)); numbers.sort(key=lambda n: -n % 1009)
print(sum(numbers[::1000]))
def work(out): out.append(sum(bytearray(b'x' * 3_000_000)))
out = []; threads = [threading.Thread(target=work, args=(out,)) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]; print(out)
print(subprocess.run(['sh', '-c', 'echo child'], capture_output=True).stdout)
";
    compare_success(&MODES, "python3", &["-c", program], b"");
}

#[test]
fn python_with_processes() {
    if !have("python3") {
        return;
    }
    let program = "
import multiprocessing
def work(n): return sum(bytearray(b'ab' * 1_000_000 * n)) % 1000
if __name__ == '__main__':
    kept = bytearray(b'z' * 5_000_000)
    multiprocessing.set_start_method('fork')
    with multiprocessing.Pool(3) as pool: print(pool.map(work, range(1, 9)))
    print(kept.count(b'z'))
";
    compare_success(&MODES, "python3", &["-c", program], b"");
}

#[test]
fn numpy() {
    let import = std::process::Command::new("python3").args(["-c", "import numpy"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        println!("numpy is not installed: skipped");
        return;
    }
    let program = "
import numpy as np
for n in (1000, 100_000, 3_000_000):
    a = np.arange(n, dtype=np.float64); b = np.ones(n)
    print((a * 2 + b * 3 - 1).sum(), np.zeros(n).any(), np.sort(-a)[0])
    del a, b
print(np.linalg.norm(np.eye(500) @ np.ones((500, 500))))
";
    compare_success(&MODES, "python3", &["-c", program], b"");
}

#[test]
fn perl() {
    if !have("perl") {
        return;
    }
    let program = r#"
my %h; $h{$_ % 5003} .= $_ for 1..400_000;
my $s = join ',', map { length $h{$_} } sort { $a <=> $b } keys %h;
print length($s), ' ', unpack('%32C*', $s), "\n";
my $x = 'y' x 20_000_000; $x =~ s/y/zz/ for 1..3; print length($x), "\n";
print `echo from a child`;
"#;
    compare_success(&MODES, "perl", &["-e", program], b"");
}

#[test]
fn sqlite() {
    if !have("sqlite3") {
        return;
    }
    let script = b"
create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
insert into t select i, hex(i * 7919) from n;
create index u on t(b);
select count(*), min(b), max(b), total(length(b)) from t;
select sum(x.a) from t x join t y on x.b = y.b where x.a % 3 = 0;
select length(zeroblob(5000000)), length(group_concat(b)) from t;
";
    compare_success(&MODES, "sqlite3", &[":memory:"], script);
}

#[test]
fn sort() {
    if have("sort") {
        compare_success(
            &MODES,
            "sort",
            &["-S", "20M", "--parallel=2", "-k2,2n", "-k1,1"],
            &lines(200_000),
        );
    }
}

#[test]
fn gcc() {
    if !have("gcc") {
        return;
    }
    let functions = (0..120).map(|i| {
        format!("int f{i}(int *a, int n) {{ for (int j = 0; j < n; j++) a[j] += {i} * j; return *a; }}\n")
    });
    let source: String = functions.collect();
    compare_success(&MODES, "gcc", &["-O2", "-S", "-x", "c", "-o", "-", "-"], source.as_bytes());
}

#[test]
fn git() {
    if !have("git") {
        return;
    }
    let folder = scratch("shim-git");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder is ours");
    let folder = folder.to_str().expect("cargo's folder is text");
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-C", folder];
        let status = std::process::Command::new("git").args(identity).args(arguments).status();
        assert!(status.is_ok_and(|status| status.success()), "git {arguments:?}");
    };
    git(&["init", "-q"]);
    for round in 1..4 {
        fs::write(format!("{folder}/{round}.txt"), lines(20_000 * round)).expect("it is ours");
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "more"]);
    }
    compare_success(&MODES, "git", &["-C", folder, "log", "-p", "--stat"], b"");
    compare_success(&MODES, "git", &["-C", folder, "fsck", "--full"], b"");
    compare_success(&MODES, "git", &["-C", folder, "pack-objects", "--all", "--stdout", "-q"], b"");
}

#[test]
fn bash_with_forks() {
    if !have("bash") {
        return;
    }
    let script = r#"
big=$(head -c 3000000 /dev/zero | tr '\0' a)
for i in 1 2 3 4; do
    ( x=$big$big; echo ${#x} $i; ( y=$x$x; echo ${#y} ) ) | cat
done
echo ${#big}
wc -c < <(echo "$big") & wait
exec echo last
"#;
    compare_success(&MODES, "bash", &["-c", script], b"");
}

#[test]
fn node() {
    if !have("node") {
        return;
    }
    let program = "
const { execSync } = require('child_process'), crypto = require('crypto'), zlib = require('zlib');
const b = Buffer.alloc(20_000_000); console.log(b.every(x => x === 0));
const text = Array.from({ length: 200000 }, (_, i) => i * i).join();
const packed = zlib.gzipSync(text); console.log(zlib.gunzipSync(packed).toString() === text);
console.log(crypto.createHash('sha256').update(text).digest('hex'));
console.log(execSync('echo child').toString());
crypto.pbkdf2('a', 'b', 1000, 32, 'sha256', (e, k) => console.log(k.toString('hex')));
";
    compare_success(&MODES, "node", &["-e", program], b"");
}

#[test]
fn java() {
    if !have("java") {
        return;
    }
    let folder = scratch("shim-java");
    let source = folder.join("Main.java");
    let program = "
import java.util.*; import java.util.stream.*; import java.util.zip.*;
public class Main {
    public static void main(String[] a) throws Exception {
        int[] n = new Random(1).ints(500_000).toArray(); Arrays.parallelSort(n);
        byte[] out = new byte[4_000_000]; Deflater d = new Deflater();
        d.setInput(Arrays.toString(n).getBytes()); d.finish(); int length = d.deflate(out);
        CRC32 c = new CRC32(); c.update(out, 0, length); System.out.println(c.getValue());
        java.nio.ByteBuffer b = java.nio.ByteBuffer.allocateDirect(10_000_000);
        for (int i = 0; i < b.capacity(); i += 4096) if (b.get(i) != 0) throw new Error();
        System.out.println(IntStream.range(0, 1000).parallel().sum());
    }
}";
    fs::write(&source, program).expect("the folder is ours");
    let source = source.to_str().expect("cargo's folder is text");
    // One way of compiling and one of running: the JVM is slow to start.
    compare_success(&MODES[..1], "java", &["-XX:TieredStopAtLevel=1", "-Xmx256m", source], b"");
}
