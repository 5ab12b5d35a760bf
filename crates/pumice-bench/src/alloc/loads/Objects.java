import java.util.HashMap;
import java.util.Map;

/** Fills maps with byte arrays: Objects TURNS. */
public class Objects {
    public static void main(String[] arguments) {
        int turns = Integer.parseInt(arguments[0]);
        long sum = 0;
        for (int turn = 0; turn < turns; turn++) {
            Map<Integer, byte[]> map = new HashMap<>();
            for (int i = 0; i < 150000; i++)
                map.put(i, new byte[200 + i % 300]);
            for (byte[] value : map.values())
                sum += value.length;
        }
        if (sum != turns * 52425000L)
            System.exit(1);
    }
}
