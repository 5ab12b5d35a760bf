import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.Random;

/** Fills and sorts arrays of 8 MiB, and copies them through buffers outside of the heap: LargeArrays TURNS. */
public class LargeArrays {
    public static void main(String[] arguments) {
        int turns = Integer.parseInt(arguments[0]);
        Random random = new Random(1);
        for (int turn = 0; turn < turns; turn++) {
            int[] numbers = new int[2 << 20];
            for (int at = 0; at < numbers.length; at++)
                numbers[at] = random.nextInt();
            IntBuffer outside = ByteBuffer.allocateDirect(numbers.length * 4).asIntBuffer();
            outside.put(numbers).flip();
            int[] sorted = new int[numbers.length];
            outside.get(sorted);
            Arrays.sort(sorted);
            for (int at = 1; at < sorted.length; at++)
                if (sorted[at - 1] > sorted[at])
                    System.exit(1);
        }
    }
}
