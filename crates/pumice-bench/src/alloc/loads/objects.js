// Fills maps with objects, and buffers outside of the heap.
const turns = Number(process.argv[1]);
let sum = 0;
for (let turn = 0; turn < turns; turn++) {
    const map = new Map();
    for (let i = 0; i < 150000; i++) map.set(i, { id: i, text: "x" + i, list: [i, i + 1] });
    for (const value of map.values()) sum += value.list[1];
    const buffers = [];
    for (let i = 0; i < 40; i++) buffers.push(Buffer.alloc(1 << 20, turn));
    sum += buffers.length;
}
process.exitCode = sum === turns * (150000 * 150001 / 2 + 40) ? 0 : 1;
